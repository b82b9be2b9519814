#include "mesh/collectives.h"

#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "comm/ordered_sum.h"

namespace baleen::mesh {
namespace {

using comm::Element;
using comm::Group;
using comm::Reduction;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Element element_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return Element::kFloat32;
    case at::kDouble:
      return Element::kFloat64;
    case at::kLong:
      return Element::kInt64;
    default:
      BALEEN_CHECK(false, "no reduction of {}", c10::toString(x.scalar_type()));
      return Element::kFloat64;
  }
}

at::Tensor reduced(const at::Tensor& x, Group& group, Reduction reduction) {
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  group.all_reduce(
      in.const_data_ptr(), out.mutable_data_ptr(), in.numel(), element_of(in), reduction);
  return out;
}

at::Tensor with_rows(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, x.options().requires_grad(false));
}

at::Tensor gathered(const at::Tensor& x, Group& group) {
  const at::Tensor in = x.contiguous();
  at::Tensor out = with_rows(in, in.size(0) * group.size());
  group.all_gather(in.const_data_ptr(), out.mutable_data_ptr(), static_cast<int64_t>(in.nbytes()));
  return out;
}

at::Tensor scattered_sum(const at::Tensor& x, Group& group) {
  const at::Tensor in = x.contiguous();
  BALEEN_CHECK(in.size(0) % group.size() == 0, "{} rows for {} ranks", in.size(0), group.size());
  at::Tensor out = with_rows(in, in.size(0) / group.size());
  group.reduce_scatter(in.const_data_ptr(), out.mutable_data_ptr(), out.numel(), element_of(in));
  return out;
}

std::vector<int64_t> bytes_of(const std::vector<int64_t>& rows, const at::Tensor& x) {
  int64_t row_bytes = static_cast<int64_t>(x.element_size());
  for (int64_t dim = 1; dim < x.dim(); ++dim) {
    row_bytes *= x.size(dim);
  }
  std::vector<int64_t> bytes;
  bytes.reserve(rows.size());
  for (const int64_t count : rows) {
    bytes.push_back(count * row_bytes);
  }
  return bytes;
}

int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

at::Tensor exchanged(const at::Tensor& x,
                     const std::vector<int64_t>& sent,
                     const std::vector<int64_t>& received,
                     Group& group) {
  const at::Tensor in = x.contiguous();
  BALEEN_CHECK(in.size(0) == total(sent), "{} rows, {} to send", in.size(0), total(sent));
  at::Tensor out = with_rows(in, total(received));
  group.all_to_all(
      in.const_data_ptr(), bytes_of(sent, in), out.mutable_data_ptr(), bytes_of(received, in));
  return out;
}

// A group in the saved data of a function. It outlives the graph: ranks make their groups before
// the first step.
void save_group(AutogradContext* ctx, Group& group) {
  ctx->saved_data["group"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(&group));
}

Group& saved_group(AutogradContext* ctx) {
  return *reinterpret_cast<Group*>(static_cast<intptr_t>(ctx->saved_data["group"].toInt()));
}

class SumOverRanks : public torch::autograd::Function<SumOverRanks> {
 public:
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, Group* group) {
    return reduced(x, *group, Reduction::kSum);
  }
  static variable_list backward(AutogradContext*, variable_list grads) {
    return {grads[0], at::Tensor()};
  }
};

class SharedByRanks : public torch::autograd::Function<SharedByRanks> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Group* group) {
    save_group(ctx, *group);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {reduced(grads[0], saved_group(ctx), Reduction::kSum), at::Tensor()};
  }
};

class AllGatherRows : public torch::autograd::Function<AllGatherRows> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Group* group) {
    save_group(ctx, *group);
    return gathered(x, *group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {scattered_sum(grads[0], saved_group(ctx)), at::Tensor()};
  }
};

class ReduceScatterRows : public torch::autograd::Function<ReduceScatterRows> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Group* group) {
    save_group(ctx, *group);
    return scattered_sum(x, *group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {gathered(grads[0], saved_group(ctx)), at::Tensor()};
  }
};

class BroadcastFrom : public torch::autograd::Function<BroadcastFrom> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t root, Group* group) {
    save_group(ctx, *group);
    ctx->saved_data["root"] = root;
    at::Tensor out = x.clone(at::MemoryFormat::Contiguous);
    broadcast_in_place(out, static_cast<int>(root), *group);
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Group& group = saved_group(ctx);
    const at::Tensor sum = reduced(grads[0], group, Reduction::kSum);
    const bool is_root = ctx->saved_data["root"].toInt() == group.rank();
    return {is_root ? sum : at::zeros_like(sum), at::Tensor(), at::Tensor()};
  }
};

class ExchangeRows : public torch::autograd::Function<ExchangeRows> {
 public:
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const std::vector<int64_t>& sent,
                            const std::vector<int64_t>& received,
                            Group* group) {
    save_group(ctx, *group);
    ctx->saved_data["sent"] = sent;
    ctx->saved_data["received"] = received;
    return exchanged(x, sent, received, *group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor back = exchanged(grads[0],
                                      ctx->saved_data["received"].toIntVector(),
                                      ctx->saved_data["sent"].toIntVector(),
                                      saved_group(ctx));
    return {back, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

class ExchangeAndSum : public torch::autograd::Function<ExchangeAndSum> {
 public:
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const std::vector<int64_t>& sent,
                            int64_t own,
                            Group* group) {
    save_group(ctx, *group);
    ctx->saved_data["sent"] = sent;
    const std::vector<int64_t> received(static_cast<std::size_t>(group->size()), own);
    const at::Tensor parts = exchanged(x, sent, received, *group);
    at::Tensor sum = with_rows(parts, own);
    std::vector<const void*> sources;
    for (int64_t rank = 0; rank < group->size(); ++rank) {
      sources.push_back(static_cast<const char*>(parts.const_data_ptr()) +
                        rank * static_cast<int64_t>(sum.nbytes()));
    }
    comm::reduce_in_order(
        sources, sum.mutable_data_ptr(), sum.numel(), element_of(sum), Reduction::kSum);
    return sum;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Group& group = saved_group(ctx);
    const std::vector<int64_t> sent(static_cast<std::size_t>(group.size()), grads[0].size(0));
    const at::Tensor copies = at::cat(std::vector<at::Tensor>(sent.size(), grads[0]), 0);
    const at::Tensor back = exchanged(copies, sent, ctx->saved_data["sent"].toIntVector(), group);
    return {back, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

class Attached : public torch::autograd::Function<Attached> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList others) {
    ctx->saved_data["others"] = static_cast<int64_t>(others.size());
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(1 + static_cast<std::size_t>(ctx->saved_data["others"].toInt()));
    result[0] = grads[0];
    return result;
  }
};

}  // namespace

at::Tensor sum_over_ranks(const at::Tensor& x, Group& group) {
  return group.size() == 1 ? x : SumOverRanks::apply(x, &group);
}

at::Tensor shared_by_ranks(const at::Tensor& x, Group& group) {
  return group.size() == 1 ? x : SharedByRanks::apply(x, &group);
}

at::Tensor all_gather_rows(const at::Tensor& x, Group& group) {
  return group.size() == 1 ? x : AllGatherRows::apply(x, &group);
}

at::Tensor reduce_scatter_rows(const at::Tensor& x, Group& group) {
  return group.size() == 1 ? x : ReduceScatterRows::apply(x, &group);
}

at::Tensor broadcast_from(const at::Tensor& x, int root, Group& group) {
  return group.size() == 1 ? x : BroadcastFrom::apply(x, int64_t{root}, &group);
}

at::Tensor exchange_rows(const at::Tensor& x,
                         const std::vector<int64_t>& sent,
                         const std::vector<int64_t>& received,
                         Group& group) {
  if (group.size() == 1) {
    BALEEN_CHECK(sent == received && x.size(0) == total(sent), "rows to nobody");
    return x;
  }
  return ExchangeRows::apply(x, sent, received, &group);
}

at::Tensor exchange_and_sum(const at::Tensor& x,
                            const std::vector<int64_t>& sent,
                            int64_t own,
                            Group& group) {
  return group.size() == 1 ? x : ExchangeAndSum::apply(x, sent, own, &group);
}

at::Tensor attached(const at::Tensor& x, const std::vector<at::Tensor>& others) {
  return others.empty() ? x : Attached::apply(x, at::TensorList(others));
}

void sum_in_place(at::Tensor& x, Group& group) {
  BALEEN_CHECK(x.is_contiguous(), "{} numbers with gaps", x.numel());
  group.all_reduce(
      x.const_data_ptr(), x.mutable_data_ptr(), x.numel(), element_of(x), Reduction::kSum);
}

void maximum_in_place(at::Tensor& x, Group& group) {
  BALEEN_CHECK(x.is_contiguous(), "{} numbers with gaps", x.numel());
  group.all_reduce(
      x.const_data_ptr(), x.mutable_data_ptr(), x.numel(), element_of(x), Reduction::kMax);
}

void broadcast_in_place(at::Tensor& x, int root, Group& group) {
  BALEEN_CHECK(x.is_contiguous(), "{} numbers with gaps", x.numel());
  group.broadcast(x.mutable_data_ptr(), static_cast<int64_t>(x.nbytes()), root);
}

double sum_of_numbers(double value, Group& group) {
  group.all_reduce(&value, &value, 1, Element::kFloat64, Reduction::kSum);
  return value;
}

}  // namespace baleen::mesh
