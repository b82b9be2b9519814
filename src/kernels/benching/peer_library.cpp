#include "kernels/benching/peer_library.h"

#include <algorithm>
#include <filesystem>

#include <dlfcn.h>

#include "base/error.h"

namespace baleen::kernels::benching {
namespace {

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
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
    const auto linear = symbol<decltype(PeerLinear::launch)>(library, "baleen_peer_fp8_linear");
    if (linear != nullptr) {
      linears_.push_back({name(), linear});
    }
    const auto bytes = symbol<decltype(PeerAttention::workspace)>(
        library, "baleen_peer_sparse_attention_workspace");
    const auto attention =
        symbol<decltype(PeerAttention::launch)>(library, "baleen_peer_sparse_attention");
    if (bytes != nullptr && attention != nullptr) {
      attentions_.push_back({name(), bytes, attention});
    }
    const auto scores_bytes =
        symbol<decltype(PeerScores::workspace)>(library, "baleen_peer_index_scores_workspace");
    const auto scores = symbol<decltype(PeerScores::launch)>(library, "baleen_peer_index_scores");
    if (scores_bytes != nullptr && scores != nullptr) {
      scores_.push_back({name(), scores_bytes, scores});
    }
    const auto topk_bytes =
        symbol<decltype(PeerTopk::workspace)>(library, "baleen_peer_topk_workspace");
    const auto topk = symbol<decltype(PeerTopk::launch)>(library, "baleen_peer_topk");
    if (topk_bytes != nullptr && topk != nullptr) {
      topks_.push_back({name(), topk_bytes, topk});
    }
    const auto pool_bytes =
        symbol<decltype(PeerPool::workspace)>(library, "baleen_peer_pool_workspace");
    const auto pool = symbol<decltype(PeerPool::launch)>(library, "baleen_peer_pool");
    if (pool_bytes != nullptr && pool != nullptr) {
      pools_.push_back({name(), pool_bytes, pool});
    }
  }
}

}  // namespace baleen::kernels::benching
