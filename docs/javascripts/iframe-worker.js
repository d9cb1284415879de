// A page that was opened from disk may not start a Worker. The search runs in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.queue = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.onload = () => this.load(frame.contentWindow, url);
      document.body.appendChild(frame);
    }

    load(scope, url) {
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = scope.document.createElement("script");
      script.src = url;
      script.onload = () => {
        this.scope = scope;
        this.queue.forEach((data) => this.postMessage(data));
      };
      scope.document.body.appendChild(script);
    }

    postMessage(data) {
      if (this.scope) this.scope.dispatchEvent(new MessageEvent("message", { data }));
      else this.queue.push(data);
    }
  };
}
