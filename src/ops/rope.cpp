#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "kernels/rope/rope_cpu.h"
#include "numerics/bfloat16.h"
#include "ops/invariant.h"
#include "ops/needs_gradient.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

/// The rotated pairs of a tensor as complex numbers [..., R/2]; a view.
at::Tensor pairs_of(const at::Tensor& x, int64_t num_pairs) {
  const at::Tensor tail = x.narrow(-1, x.size(-1) - 2 * num_pairs, 2 * num_pairs);
  return at::view_as_complex(tail.unflatten(-1, {num_pairs, 2}));
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& rows, bool inverse) {
  at::Tensor result = x.clone(at::MemoryFormat::Contiguous);
  at::Tensor factors = inverse ? rows.conj() : rows;
  if (x.dim() == 4) {
    factors = factors.unsqueeze(-2);
  }
  pairs_of(result, rows.size(-1)).mul_(factors);
  return result;
}

/// Copy, rotation and rounding in one pass, for CPU tensors that need no gradient.
at::Tensor fused_rotation(const at::Tensor& x, const at::Tensor& rows, bool inverse, bool rounded) {
  const at::Tensor source = x.contiguous();
  const at::Tensor table = at::view_as_real(rows.contiguous());
  at::Tensor y = at::empty_like(source);
  const int64_t tokens = x.size(0) * x.size(1);
  const int64_t table_rows = rows.numel() / rows.size(-1);  // x.size(1) of them, or one per token
  const int64_t width = x.size(-1);
  const int64_t heads = x.dim() == 4 ? x.size(2) : 1;
  AT_DISPATCH_FLOATING_TYPES(source.scalar_type(), "rotate", [&] {
    for (int64_t i = 0; i < tokens; ++i) {
      kernels::rotate_cpu<scalar_t>(
          {.x = source.const_data_ptr<scalar_t>() + i * heads * width,
           .cis = table.const_data_ptr<scalar_t>() + i % table_rows * 2 * rows.size(-1),
           .y = y.mutable_data_ptr<scalar_t>() + i * heads * width,
           .rows = heads,
           .width = width,
           .pairs = rows.size(-1),
           .inverse = inverse,
           .rounded = rounded});
    }
  });
  return y;
}

class Rotate : public torch::autograd::Function<Rotate> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& rows,
                            bool inverse) {
    ctx->save_for_backward({rows});
    ctx->saved_data["inverse"] = inverse;
    return rotated(x, rows, inverse);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const at::Tensor rows = ctx->get_saved_variables()[0];
    return {
        rotated(grads[0], rows, !ctx->saved_data["inverse"].toBool()), at::Tensor(), at::Tensor()};
  }
};

c10::complex<double> exact_cis(int64_t position, double frequency) {
  const double angle = static_cast<double>(position) * frequency;
  return {std::cos(angle), std::sin(angle)};
}

/// Cosine and sine of the reference program: frequency and angle in float, then the table's type.
c10::complex<float> rounded_cis(int64_t position, double frequency, RopeTableType type) {
  const float angle = static_cast<float>(position) * static_cast<float>(frequency);
  const auto cosine = static_cast<float>(std::cos(static_cast<double>(angle)));
  const auto sine = static_cast<float>(std::sin(static_cast<double>(angle)));
  if (type == RopeTableType::kBf16) {
    return {numerics::round_to_bf16(cosine), numerics::round_to_bf16(sine)};
  }
  return {cosine, sine};
}

/// The table is filled in the type its values are rounded to: kept as double in between, GCC 12
/// leaves out the rounding of pairs that it turns into vectors.
template <class T, class Cis>
at::Tensor filled_table(const std::vector<double>& frequencies, int64_t num_positions, Cis&& cis) {
  at::Tensor table = at::empty({num_positions, static_cast<int64_t>(frequencies.size())},
                               c10::CppTypeToScalarType<c10::complex<T>>::value);
  auto* out = table.mutable_data_ptr<c10::complex<T>>();
  for (int64_t position = 0; position < num_positions; ++position) {
    for (const double frequency : frequencies) {
      *out++ = cis(position, frequency);
    }
  }
  return table;
}

}  // namespace

std::vector<double> rope_frequencies(int64_t rotary_dim,
                                     double theta,
                                     const std::optional<YarnConfig>& yarn) {
  BALEEN_CHECK(rotary_dim >= 0 && rotary_dim % 2 == 0, "rotary_dim={}", rotary_dim);
  const auto width = static_cast<double>(rotary_dim);
  std::vector<double> frequencies(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / width);
  }
  if (!yarn) {
    return frequencies;
  }
  // The index at which a wave turns `beta` times over the original context.
  const auto turning_index = [&](double beta) {
    const auto context = static_cast<double>(yarn->original_max_position_embeddings);
    return width * std::log(context / (2.0 * std::numbers::pi * beta)) / (2.0 * std::log(theta));
  };
  const double low = std::max(std::floor(turning_index(yarn->beta_fast)), 0.0);
  const double high = std::min(std::ceil(turning_index(yarn->beta_slow)), width - 1.0);
  const double span = high == low ? 0.001 : high - low;  // a step instead of a division by zero
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / span, 0.0, 1.0);
    frequencies[i] = frequencies[i] / yarn->factor * ramp + frequencies[i] * (1.0 - ramp);
  }
  return frequencies;
}

at::Tensor RopeTable::rows(int64_t first_position, int64_t count, int64_t step) const {
  BALEEN_CHECK(first_position >= 0 && step > 0 && count >= 0 &&
                   (count == 0 || first_position + (count - 1) * step < num_positions()),
               "first={} count={} step={} of {} positions",
               first_position,
               count,
               step,
               num_positions());
  if (count == 0) {
    return cis.narrow(0, 0, 0);
  }
  return cis.slice(0, first_position, first_position + (count - 1) * step + 1, step);
}

at::Tensor RopeTable::rows_at(const at::Tensor& positions) const {
  std::vector<int64_t> sizes = positions.sizes().vec();
  sizes.push_back(cis.size(1));
  return cis.index_select(0, positions.reshape({-1})).view(sizes);
}

RopeTable make_rope_table(const std::vector<double>& frequencies,
                          int64_t num_positions,
                          const at::Tensor& like,
                          const Numerics& numerics) {
  const bool exact =
      numerics.rope_table == RopeTableType::kCompute && like.scalar_type() == at::kDouble;
  const at::Tensor table =
      exact ? filled_table<double>(frequencies, num_positions, exact_cis)
            : filled_table<float>(
                  frequencies, num_positions, [&](int64_t position, double frequency) {
                    return rounded_cis(position, frequency, numerics.rope_table);
                  });
  const auto dtype = like.scalar_type() == at::kDouble ? at::kComplexDouble : at::kComplexFloat;
  return {table.to(like.device(), dtype)};
}

at::Tensor rotate(const at::Tensor& x,
                  const at::Tensor& rows,
                  bool inverse,
                  const Numerics& numerics) {
  BALEEN_CHECK((x.dim() == 3 || x.dim() == 4) && rows.size(-2) == x.size(1) &&
                   2 * rows.size(-1) <= x.size(-1) && x.size(-1) % 2 == 0,
               "{} dims, {} tokens of width {}, table rows {} x {}",
               x.dim(),
               x.size(1),
               x.size(-1),
               rows.size(-2),
               rows.size(-1));
  if (rows.size(-1) == 0) {
    return x;
  }
  const bool gradient = needs_gradient(x);
  const auto by_tensors = [&] {
    return store_activation(gradient ? Rotate::apply(x, rows, inverse) : rotated(x, rows, inverse),
                            numerics);
  };
  const auto by_kernel = [&] {
    return fused_rotation(x, rows, inverse, numerics.round_activations);
  };
  if (numerics.invariant()) {
    return invariant_value(x, gradient, by_tensors, by_kernel);
  }
  return x.device().is_cpu() && rows.dim() == 2 && !gradient ? by_kernel() : by_tensors();
}

}  // namespace baleen::ops
