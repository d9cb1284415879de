// main() of a fuzz program where there is no libFuzzer: runs the inputs of a corpus, then mutations
// of them for a while.
//
//   control_frames_fuzz tests/fuzz/corpus/control_frames --seconds 3 --seed 7
//
// If the program crashes, the input is in ./crash-input, and the program takes it as an argument.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

const Bytes* running = nullptr;

void write_input(int signal) {
  const int file = ::open("crash-input", O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (file >= 0 && running != nullptr)
    static_cast<void>(!::write(file, running->data(), running->size()));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const Bytes& input) {
  running = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

void add_file(std::vector<Bytes>& inputs, const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

void add_all(std::vector<Bytes>& inputs, const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return add_file(inputs, path);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  std::ranges::sort(files);
  for (const auto& file : files) add_file(inputs, file);
}

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& inputs, unsigned seed) : inputs_(inputs), random_(seed) {}

  Bytes next() {
    Bytes bytes = inputs_.empty() ? Bytes() : inputs_[below(inputs_.size())];
    for (std::size_t i = below(4) + 1; i > 0; --i) mutate(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  std::size_t place_in(const Bytes& bytes) { return below(bytes.size() + 1); }

  void mutate(Bytes& bytes) {
    const auto at = static_cast<std::ptrdiff_t>(place_in(bytes));
    switch (below(4)) {
      case 0:  // another value
        if (at < std::ssize(bytes)) bytes[static_cast<std::size_t>(at)] = value();
        return;
      case 1:  // more bytes
        bytes.insert(bytes.begin() + at, below(16) + 1, value());
        return;
      case 2:  // fewer
        bytes.erase(bytes.begin() + at,
                    bytes.begin() + static_cast<std::ptrdiff_t>(std::min(
                                        bytes.size(), static_cast<std::size_t>(at) + below(16))));
        return;
      default:  // the end of another input
        if (inputs_.empty()) return;
        const Bytes& other = inputs_[below(inputs_.size())];
        bytes.erase(bytes.begin() + at, bytes.end());
        bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(place_in(other)),
                     other.end());
    }
  }
  std::uint8_t value() {
    constexpr std::uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff};
    return below(2) == 0 ? kEdges[below(std::size(kEdges))] : static_cast<std::uint8_t>(random_());
  }

  const std::vector<Bytes>& inputs_;
  std::mt19937 random_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<Bytes> inputs;
  double seconds = 0;
  unsigned seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--seconds" && i + 1 < argc)
      seconds = std::stod(argv[++i]);
    else if (argument == "--seed" && i + 1 < argc)
      seed = static_cast<unsigned>(std::stoul(argv[++i]));
    else
      add_all(inputs, argument);
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
    std::signal(signal, write_input);
  for (const Bytes& input : inputs) run(input);
  Mutator mutator(inputs, seed);
  std::size_t mutations = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; std::chrono::steady_clock::now() < end; ++mutations) run(mutator.next());
  std::printf("%zu inputs, %zu mutations of them (seed %u)\n", inputs.size(), mutations, seed);
}
