#include "mesh/row_exchange.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "base/check.h"
#include "mesh/collectives.h"

namespace baleen::mesh {

RowOwners::RowOwners(int64_t num_ids, const std::vector<IdList>& ids_by_rank)
    : owner_(static_cast<std::size_t>(num_ids), -1), place_(static_cast<std::size_t>(num_ids), -1) {
  for (std::size_t rank = 0; rank < ids_by_rank.size(); ++rank) {
    int64_t place = 0;
    for (const int64_t id : ids_by_rank[rank]) {
      int& owner = owner_.at(static_cast<std::size_t>(id));
      BALEEN_CHECK(owner < 0, "row {} on ranks {} and {}", id, owner, rank);
      owner = static_cast<int>(rank);
      place_[static_cast<std::size_t>(id)] = place++;
    }
    num_rows_.push_back(place);
  }
}

RowExchange::RowExchange(const RowOwners& owners,
                         const std::vector<IdList>& wanted_by_rank,
                         int rank) {
  IdList send;
  std::vector<IdList> arrivals(wanted_by_rank.size());  // by sender, where they go
  for (std::size_t receiver = 0; receiver < wanted_by_rank.size(); ++receiver) {
    const auto before = static_cast<int64_t>(send.size());
    const IdList& wanted = wanted_by_rank[receiver];
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const int owner = owners.owner(wanted[i]);
      BALEEN_CHECK(owner >= 0, "row {} is nobody's", wanted[i]);
      is_needed_ = is_needed_ || owner != static_cast<int>(receiver) ||
                   owners.place(wanted[i]) != static_cast<int64_t>(i);
      if (owner == rank) {
        send.push_back(owners.place(wanted[i]));
      }
      if (static_cast<int>(receiver) == rank) {
        arrivals[static_cast<std::size_t>(owner)].push_back(static_cast<int64_t>(i));
      }
    }
    is_needed_ = is_needed_ || (!wanted.empty() &&
                                static_cast<int64_t>(wanted.size()) != owners.num_rows(receiver));
    sent_.push_back(static_cast<int64_t>(send.size()) - before);
  }
  IdList arrange(wanted_by_rank[static_cast<std::size_t>(rank)].size());
  int64_t arrived = 0;
  for (const IdList& from : arrivals) {
    received_.push_back(static_cast<int64_t>(from.size()));
    for (const int64_t i : from) {
      arrange[static_cast<std::size_t>(i)] = arrived++;
    }
  }
  send_ = at::tensor(send, at::kLong);
  arrange_ = at::tensor(arrange, at::kLong);
}

at::Tensor RowExchange::run(const at::Tensor& own, comm::Group& group) const {
  const at::Tensor out = own.index_select(0, send_);
  return exchange_rows(out, sent_, received_, group).index_select(0, arrange_);
}

}  // namespace baleen::mesh
