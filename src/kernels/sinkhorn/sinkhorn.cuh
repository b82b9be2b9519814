#pragma once
// Sinkhorn normalisation of one 4 x 4 matrix in the registers of one thread: the chain of 39 steps
// is bound by latency, and one thread has no shuffles on it. Device function; any number of lanes
// may run it at once on matrices of their own.
//
//   float c[16] = {...};                 // logits, row-major
//   sinkhorn4(c, 1e-6F, 20);             // comb
//
// The matrix stays C = diag(r) K diag(s), K the row softmax plus eps, so a step is four dots and
// four reciprocals: dividing row j by (its sum + eps) makes r_j = 1 / ((K s)_j + eps / r_j), and 1
// / r_j is the divisor of the step before. A reciprocal is refined by r (1 + e + e^2) with e = 1 -
// divisor r, which leaves an error of e^3: twice from a guess within an eighth (the reciprocal unit
// would take longer), and once from its old value when no line sum is more than 2^-9 from one,
// which the iteration only ever improves. Absolute error against the exact result < 1e-6. Oracle:
// sinkhorn_oracle.h.

namespace baleen::kernels {

/// divisor_i = sum_l line_i[l] * other_l + eps * divisor_i, for the four rows (kLine = 4, kStep =
/// 1) or columns (kLine = 1, kStep = 4) of k.
template <int kLine, int kStep>
__device__ __forceinline__ void sinkhorn4_divisors(const float (&k)[16],
                                                   const float (&other)[4],
                                                   float (&divisor)[4],
                                                   float eps) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = __fmul_rn(eps, divisor[i]);
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      sum = __fmaf_rn(k[i * kLine + l * kStep], other[l], sum);
    }
    divisor[i] = sum;
  }
}

/// scale_i = 1 / divisor_i from an approximation; gives the largest |1 - divisor_i * scale_i|
/// before.
__device__ __forceinline__ float sinkhorn4_refine(const float (&divisor)[4], float (&scale)[4]) {
  float rest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rest[i] = __fmaf_rn(-divisor[i], scale[i], 1.0F);
    scale[i] = __fmaf_rn(scale[i], __fmaf_rn(rest[i], rest[i], rest[i]), scale[i]);
  }
  return fmaxf(fmaxf(fabsf(rest[0]), fabsf(rest[1])), fmaxf(fabsf(rest[2]), fabsf(rest[3])));
}

/// scale_i = 1 / divisor_i, of positive normal divisors. The difference of the bits is linear in
/// the logarithm, piece by piece: within an eighth of the reciprocal.
__device__ __forceinline__ void sinkhorn4_invert(const float (&divisor)[4], float (&scale)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scale[i] = __uint_as_float(0x7EF311C7U - __float_as_uint(divisor[i]));
  }
  sinkhorn4_refine(divisor, scale);
  sinkhorn4_refine(divisor, scale);
}

/// Largest |1 - divisor_i * scale_i|.
__device__ __forceinline__ float sinkhorn4_distance(const float (&divisor)[4],
                                                    const float (&scale)[4]) {
  float rest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rest[i] = fabsf(__fmaf_rn(-divisor[i], scale[i], 1.0F));
  }
  return fmaxf(fmaxf(rest[0], rest[1]), fmaxf(rest[2], rest[3]));
}

/// k: the row softmax plus eps, in; comb, out.
__device__ __forceinline__ void sinkhorn4_iterate(float (&c)[16], float eps, int iters) {
  float row[4] = {1.0F, 1.0F, 1.0F, 1.0F};
  float column[4];
  float row_divisor[4] = {1.0F, 1.0F, 1.0F, 1.0F};
  float column_divisor[4] = {1.0F, 1.0F, 1.0F, 1.0F};
  sinkhorn4_divisors<1, 4>(c, row, column_divisor, eps);
  sinkhorn4_invert(column_divisor, column);
  int iter = 1;
  float distance = 1.0F;
#pragma unroll 1
  for (; iter < iters && !(distance < 0x1p-9F); ++iter) {
    sinkhorn4_divisors<4, 1>(c, column, row_divisor, eps);
    distance = sinkhorn4_distance(row_divisor, row);
    sinkhorn4_invert(row_divisor, row);
    sinkhorn4_divisors<1, 4>(c, row, column_divisor, eps);
    distance = fmaxf(distance, sinkhorn4_distance(column_divisor, column));
    sinkhorn4_invert(column_divisor, column);
  }
#pragma unroll 1
  for (bool moves = true; iter < iters && moves; ++iter) {
    const float before = distance;
    sinkhorn4_divisors<4, 1>(c, column, row_divisor, eps);
    distance = sinkhorn4_refine(row_divisor, row);
    sinkhorn4_divisors<1, 4>(c, row, column_divisor, eps);
    sinkhorn4_refine(column_divisor, column);
    // Shrinking fourfold, all later steps together move a sum by less than a third of 2^-20.
    moves = !(distance < 0x1p-20F && 4.0F * distance < before);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    c[i] = __fmul_rn(__fmul_rn(row[i / 4], c[i]), column[i % 4]);
  }
}

/// Logits in, comb out.
__device__ __forceinline__ void sinkhorn4(float (&c)[16], float eps, int iters) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float maximum = fmaxf(fmaxf(c[4 * j], c[4 * j + 1]), fmaxf(c[4 * j + 2], c[4 * j + 3]));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      c[4 * j + k] = expf(c[4 * j + k] - maximum);
    }
    const float sum =
        __fadd_rn(__fadd_rn(c[4 * j], c[4 * j + 1]), __fadd_rn(c[4 * j + 2], c[4 * j + 3]));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      c[4 * j + k] = __fadd_rn(__fdiv_rn(c[4 * j + k], sum), eps);
    }
  }
  sinkhorn4_iterate(c, eps, iters);
}

/// The first part of sinkhorn4 with one element per lane, rows of four neighbouring lanes; the same
/// bits. All 32 lanes call.
__device__ __forceinline__ float sinkhorn4_softmax_lane(float logit, float eps) {
  float maximum = fmaxf(logit, __shfl_xor_sync(0xFFFFFFFFU, logit, 1));
  maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFU, maximum, 2));
  const float e = expf(logit - maximum);
  float sum = __fadd_rn(e, __shfl_xor_sync(0xFFFFFFFFU, e, 1));
  sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFU, sum, 2));
  return __fadd_rn(__fdiv_rn(e, sum), eps);
}

}  // namespace baleen::kernels
