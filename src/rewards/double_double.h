#pragma once
// Complex numbers of about 31 digits: pairs of doubles whose sum is the value (Dekker, Knuth). Just
// what comparing expressions needs. Pure, any thread.

#include <cmath>
#include <complex>

namespace baleen::rewards {

struct DoubleDouble {
  double high = 0.0;
  double low = 0.0;
};

inline DoubleDouble exact_sum(double a, double b) {
  const double sum = a + b;
  const double part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}
inline DoubleDouble operator+(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble high = exact_sum(a.high, b.high);
  const DoubleDouble low = exact_sum(a.low, b.low);
  const DoubleDouble middle = exact_sum(high.high, high.low + low.high);
  return exact_sum(middle.high, middle.low + low.low);
}
inline DoubleDouble operator-(DoubleDouble a) {
  return {-a.high, -a.low};
}
inline DoubleDouble operator-(DoubleDouble a, DoubleDouble b) {
  return a + -b;
}
inline DoubleDouble operator*(DoubleDouble a, DoubleDouble b) {
  const double product = a.high * b.high;
  const double error = std::fma(a.high, b.high, -product);
  return exact_sum(product, error + (a.high * b.low + a.low * b.high));
}
inline DoubleDouble operator/(DoubleDouble a, DoubleDouble b) {
  const double first = a.high / b.high;
  const DoubleDouble rest = a - b * DoubleDouble{first, 0.0};
  const double second = rest.high / b.high;
  const DoubleDouble rest2 = rest - b * DoubleDouble{second, 0.0};
  return exact_sum(first, second) + DoubleDouble{rest2.high / b.high, 0.0};
}

struct WideComplex {
  DoubleDouble re;
  DoubleDouble im;
  bool finite() const { return std::isfinite(re.high) && std::isfinite(im.high); }
  std::complex<double> rounded() const { return {re.high, im.high}; }
};

inline WideComplex wide(std::complex<double> value) {
  return {{value.real(), 0.0}, {value.imag(), 0.0}};
}
inline WideComplex operator+(const WideComplex& a, const WideComplex& b) {
  return {a.re + b.re, a.im + b.im};
}
inline WideComplex operator-(const WideComplex& a) {
  return {-a.re, -a.im};
}
inline WideComplex operator-(const WideComplex& a, const WideComplex& b) {
  return a + -b;
}
inline WideComplex operator*(const WideComplex& a, const WideComplex& b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
inline WideComplex operator/(const WideComplex& a, const WideComplex& b) {
  const DoubleDouble size = b.re * b.re + b.im * b.im;
  const WideComplex above = a * WideComplex{b.re, -b.im};
  return {above.re / size, above.im / size};
}

inline WideComplex integer_power(WideComplex base, unsigned exponent) {
  WideComplex value = wide(1.0);
  for (; exponent != 0; exponent >>= 1U) {
    if ((exponent & 1U) != 0) {
      value = value * base;
    }
    base = base * base;
  }
  return value;
}

/// The principal root: of double precision, then two steps of Newton.
inline WideComplex principal_root(const WideComplex& value, unsigned degree) {
  const std::complex<double> seed = std::pow(value.rounded(), 1.0 / static_cast<double>(degree));
  if (seed == 0.0) {
    return {};
  }
  WideComplex root = wide(seed);
  const WideComplex count = wide(static_cast<double>(degree));
  for (int step = 0; step < 2; ++step) {
    const WideComplex lower = integer_power(root, degree - 1);
    root = root - (lower * root - value) / (count * lower);
  }
  return root;
}

}  // namespace baleen::rewards
