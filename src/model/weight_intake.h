#pragma once
// Writes streamed weights into the tensors that a model computes with, in place: addresses stay.
// The storage class of every matrix was fixed when the model was made; a stream of another one is
// refused. One thread, while no step runs.
//
//   WeightIntake intake(model.parameters());
//   intake.check(source.manifest());                 // before anything is written
//   intake.write(tensor, entry);
//   TensorDigests digests = value_digests(model.parameters());

#include <string>
#include <string_view>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "model/parameters.h"
#include "weights/weight_stream.h"

namespace baleen::model {

class WeightIntake {
 public:
  /// Keeps views of the tensors.
  explicit WeightIntake(ModelParameters& params);

  /// Throws CheckpointError naming the tensor unless the stream has every parameter of the model in
  /// its shape and storage class. MTP blocks that the model does not hold may come.
  void check(const weights::WeightManifest& manifest) const;
  /// Values as a checkpoint in these bytes would give. An entry of an absent MTP block is dropped.
  void write(const weights::StreamedTensor& tensor, const weights::ManifestEntry& entry);
  /// xxh3-64 of the values in the model's type. The name must be the model's.
  uint64_t value_digest(std::string_view name) const;
  bool contains(std::string_view name) const { return places_.contains(std::string(name)); }

 private:
  struct Place {
    at::Tensor value;  // a view of what the model holds
    ParameterRole role = ParameterRole::kDenseMatrix;
    ops::LinearFormat format = ops::LinearFormat::kPlain;
  };
  bool has_mtp_ = false;
  std::unordered_map<std::string, Place> places_;  // by published name
};

/// Of every published tensor in the order of the parameters, from the values that a forward
/// computes with: those of a trainer and of the engine that serves them are equal.
weights::TensorDigests value_digests(const ModelParameters& params);

}  // namespace baleen::model
