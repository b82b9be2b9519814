#include "kernels/benching/peer_library.h"

#include <algorithm>
#include <filesystem>

#include <dlfcn.h>

#include "base/error.h"

namespace baleen::kernels::benching {
namespace {

template <class Function>
Function symbol(void* library, const std::string& name) {
  return reinterpret_cast<Function>(dlsym(library, name.c_str()));
}

/// Adds what the library has for one kind of call: all its functions or nothing.
template <class Call>
void add_peer(void* library, const std::string& name, std::vector<Peer<Call>>& peers) {
  Peer<Call> peer{.name = name};
  peer.launch = symbol<decltype(peer.launch)>(library, Call::kFunction);
  bool whole = peer.launch != nullptr;
  if constexpr (HasWorkspace<Call>) {
    peer.workspace =
        symbol<decltype(peer.workspace)>(library, std::string(Call::kFunction) + "_workspace");
    whole = whole && peer.workspace != nullptr;
  }
  if (whole) {
    peers.push_back(peer);
  }
}

}  // namespace

PeerLibraries::PeerLibraries(const std::string& folder) {
  if (folder.empty()) {
    return;
  }
  std::error_code failure;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    if (entry.path().extension() == ".so") {
      files.push_back(std::filesystem::absolute(entry.path()));
    }
  }
  if (failure) {
    throw ConfigError("peers: cannot read folder " + folder + ": " + failure.message());
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw ConfigError("peers: " + std::string(dlerror()));
    }
    const auto name = symbol<const char* (*)()>(library, "baleen_peer_name");
    if (name == nullptr) {
      throw ConfigError("peers: " + file.string() + " has no baleen_peer_name");
    }
    std::apply([&](auto&... peers) { (add_peer(library, name(), peers), ...); }, peers_);
  }
}

}  // namespace baleen::kernels::benching
