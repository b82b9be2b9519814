#include "train/weight_sender.h"

#include <span>
#include <system_error>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "model/fake_quantized.h"
#include "model/weight_intake.h"
#include "train/published.h"
#include "weights/digest_file.h"

namespace baleen::train {
namespace {

/// The tensors whose digests are told.
weights::TensorDigests sampled(weights::TensorDigests digests, const SendOptions& options) {
  const auto count = static_cast<int64_t>(digests.size());
  if (options.verify == WeightVerify::kOff) {
    return {};
  }
  if (options.verify == WeightVerify::kFull || count <= kSampledTensors) {
    return digests;
  }
  weights::TensorDigests some;
  for (int64_t i = 0; i < kSampledTensors; ++i) {
    // Evenly spread, and all in turn as versions go by.
    const int64_t place = (i * count / kSampledTensors + options.version) % count;
    some.push_back(digests[static_cast<std::size_t>(place)]);
  }
  return some;
}

}  // namespace

WeightVerify weight_verify_by_name(std::string_view name) {
  for (const auto& [known, verify] :
       {std::pair<std::string_view, WeightVerify>{"off", WeightVerify::kOff},
        {"sample", WeightVerify::kSample},
        {"full", WeightVerify::kFull}}) {
    if (name == known) {
      return verify;
    }
  }
  throw ConfigError(
      fmt::format("verify_weight_sync \"{}\" is not known; accepted: off, sample, full", name));
}

void check_finite(const model::ModelParameters& params) {
  const at::NoGradGuard no_grad;
  model::ModelParameters shown = params;
  model::for_each_published_tensor(shown, [](const std::string& name, const at::Tensor& value) {
    if (!value.is_floating_point() || value.isfinite().all().item<bool>()) {
      return;
    }
    const at::Tensor bad = value.isfinite().logical_not().flatten().nonzero();
    throw Error(fmt::format(
        "{}: number {} is not finite; it is not published", name, bad[0][0].item<int64_t>()));
  });
}

SharedWeights::SharedWeights(const model::ModelParameters& params, const SendOptions& options) {
  check_finite(params);
  manifest_.version = options.version;
  manifest_.contract = options.contract;
  manifest_.config = weights::model_digest(params.config);
  if (options.verify != WeightVerify::kOff) {
    digests_ = sampled(model::value_digests(params), options);
  }
}

MasterStream::MasterStream(const Masters& masters, SendOptions options)
    : masters_(masters),
      options_(std::move(options)),
      manifest_(weights::weight_manifest(
          masters.config(),
          published_format(masters.values(), masters.rounding() == WeightRounding::kServed),
          options_.contract,
          options_.version)) {
  check_finite(masters.values());
  model::ModelParameters shown = masters.values();
  model::for_each_published_tensor(shown, [&](const std::string& name, const at::Tensor& value) {
    values_.emplace(name, value);
  });
}

std::optional<weights::WeightBucket> MasterStream::next() {
  if (next_ == manifest_.entries.size()) {
    return std::nullopt;
  }
  const at::NoGradGuard no_grad;
  const std::size_t end = weights::bucket_end(manifest_, next_, options_.bucket_bytes);
  weights::WeightBucket bucket;
  for (; next_ < end; ++next_) {
    const weights::ManifestEntry& entry = manifest_.entries[next_];
    const auto value = values_.find(entry.parameter.name);
    BALEEN_CHECK(value != values_.end(), "{} has no value", entry.parameter.name);
    weights::StreamedTensor tensor;
    tensor.name = entry.parameter.name;
    tensor.encoded = encode_published(value->second, entry.parameter, entry.format);
    tensor.digest = weights::tensor_digest(tensor.name,
                                           {std::as_bytes(std::span(tensor.encoded.values)),
                                            std::as_bytes(std::span(tensor.encoded.scales))});
    sent_.emplace_back(tensor.name, tensor.digest);
    bucket.push_back(std::move(tensor));
  }
  return bucket;
}

std::string MasterStream::root() const {
  return weights::digest_root(sent_);
}

weights::TensorDigests MasterStream::value_digests() const {
  return options_.verify == WeightVerify::kOff
             ? weights::TensorDigests()
             : sampled(model::value_digests(masters_.leaves()), options_);
}

PublishedWeights published_weights(const Masters& masters) {
  return {.values = masters.values(),
          .leaves = masters.leaves(),
          .rounded = masters.rounding() == WeightRounding::kServed};
}

void publish_folder(const PublishedWeights& whole,
                    const std::filesystem::path& source,
                    const std::filesystem::path& folder,
                    const SendOptions& options) {
  check_finite(whole.values);
  if (std::filesystem::exists(folder)) {
    throw Error(fmt::format("{}: exists already", folder.string()));
  }
  const std::filesystem::path beside = folder.string() + ".part";
  std::filesystem::remove_all(beside);  // of a run that was ended
  write_published(whole.values, beside, published_format(whole.values, whole.rounded));
  copy_tokenizer(source, beside);
  if (whole.leaves.embed.scalar_type() == at::kFloat) {  // as engines hold them
    weights::write_digest_file(beside,
                               {.version = options.version,
                                .contract = options.contract,
                                .values = model::value_digests(whole.leaves)});
  }
  std::error_code failed;
  std::filesystem::rename(beside, folder, failed);
  if (failed) {
    throw SystemError(fmt::format("{}: cannot be renamed: {}", beside.string(), failed.message()));
  }
}

}  // namespace baleen::train
