// file_store(): one file per key in a shared directory. See tccl/store.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/system_error.h"
#include "tccl/error.h"
#include "tccl/store.h"

namespace tccl {

Store::~Store() = default;

namespace {

/// Hexadecimal, since a key may contain characters that a file name may not.
std::string file_name(const std::string& key) {
  return to_hex(std::span(reinterpret_cast<const unsigned char*>(key.data()), key.size()));
}

/// Repeats a system call that a signal has interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  for (;;)
    if (const auto result = call(); result >= 0 || errno != EINTR) return result;
}

/// On NFS, a file that another host has replaced or removed since this host looked it up is stale:
/// the next open() looks it up again.
bool means_no_such_file(int error) { return error == ENOENT || error == ESTALE; }

/// None if there is no such file.
std::optional<std::string> read_file(const std::string& path) {
  const Fd file(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!file && means_no_such_file(errno)) return std::nullopt;
  if (!file) throw_system_error("open " + path);
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = uninterrupted([&] { return ::read(file.get(), buffer, sizeof buffer); })) > 0)
    text.append(buffer, static_cast<std::size_t>(count));
  if (count < 0 && means_no_such_file(errno)) return std::nullopt;
  if (count < 0) throw_system_error("read " + path);
  return text;
}

/// Throws on a partial write (such as on a full disk), so that no reader sees half a value.
void write_private_file(const std::string& path, std::string_view value) {
  const Fd file(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!file) throw_system_error("open " + path);
  if (::write(file.get(), value.data(), value.size()) != static_cast<ssize_t>(value.size()))
    throw_system_error("write " + path);
}

/// Creates a directory and its missing parents, like `mkdir -p -m <mode>`.
void make_directories(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) == 0 || errno == EEXIST) return;
  const std::size_t slash = path.find_last_of('/', path.find_last_not_of('/'));
  if (errno != ENOENT || slash == std::string::npos) throw_system_error("mkdir " + path);
  make_directories(path.substr(0, slash), 0777);
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) throw_system_error("mkdir " + path);
}

/// Another user could replace what the ranks read in his directory.
void require_own_directory(const std::string& path) {
  const Fd directory(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) throw_system_error("open " + path);
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0) throw_system_error("stat " + path);
  if (status.st_uid != ::geteuid() && status.st_uid != 0)
    throw Error(Errc::invalid_argument,
                formatted("the directory {} of the store belongs to user {}, but this process to "
                          "user {}",
                          path, status.st_uid, ::geteuid()));
}

class FileStore final : public Store {
 public:
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {
    make_directories(directory_, 0700);
    require_own_directory(directory_);
  }

  void set(const std::string& key, std::string_view value) override {
    // Write a temporary file and rename it: a reader sees the whole value or none.
    const std::string target = path_of(key);
    const Bytes32 unique = random_bytes32();  // several threads may set the same key
    const std::string temporary = formatted("{}.{}", target, to_hex(std::span(unique).first(8)));
    write_private_file(temporary, value);
    if (::rename(temporary.c_str(), target.c_str()) != 0) throw_system_error("rename " + target);
  }

  void remove(const std::string& key) override {
    if (::unlink(path_of(key).c_str()) != 0 && errno != ENOENT)
      throw_system_error("unlink " + path_of(key));
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    const Deadline deadline = deadline_after(timeout);
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, kMaxPause)) {
      if (auto value = read_file(path_of(key))) return *value;
      if (Clock::now() >= deadline)
        throw Error(Errc::timeout,
                    formatted("timed out after {}: no rank has stored key \"{}\" in {}",
                              text_of(timeout), key, directory_));
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  static constexpr std::chrono::milliseconds kMaxPause{20};

  [[nodiscard]] std::string path_of(const std::string& key) const {
    return directory_ + "/" + file_name(key);
  }

  std::string directory_;
};

}  // namespace

std::shared_ptr<Store> file_store(const std::string& directory) {
  return std::make_shared<FileStore>(directory);
}

}  // namespace tccl
