#include "rewards/math_equality.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "rewards/exact_number.h"
#include "rewards/math_expression.h"
#include "rewards/math_form.h"

namespace baleen::rewards {
namespace {

constexpr size_t kMaxLength = 4096;  // bytes of an answer that is more than compared
constexpr int kMaxListDepth = 4;
constexpr size_t kMaxItems = 256;

/// A list as it is written: its brackets ("" for none) and what stands between commas.
struct WrittenList {
  std::string_view open;
  std::string_view close;
  std::vector<std::string_view> items;
  bool set() const { return open == "\\{"; }
};

/// +1 for an opening, -1 for a closing bracket, else 0.
int bracket(char c) {
  return c == '(' || c == '[' || c == '{' ? 1 : c == ')' || c == ']' || c == '}' ? -1 : 0;
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> items;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    depth += bracket(text[i]);
    if (text[i] == ',' && depth == 0) {
      items.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  items.push_back(text.substr(begin));
  return items;
}

/// Whether the bracket that opens at the front closes at the very end.
bool encloses(std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    depth += bracket(text[i]);
    if (depth == 0 && i + 1 < text.size() && bracket(text[i]) < 0) {
      return false;
    }
  }
  return depth == 0;
}

/// None for anything that is no list of two or more, or set of one or more.
std::optional<WrittenList> read_list(std::string_view form) {
  WrittenList list;
  std::string_view inner = form;
  if (form.starts_with("\\{") && form.ends_with("\\}") && form.size() >= 4) {
    list.open = form.substr(0, 2);
    list.close = form.substr(form.size() - 2);
    inner = form.substr(2, form.size() - 4);
  } else if (form.size() >= 2 && (form.front() == '(' || form.front() == '[') &&
             (form.back() == ')' || form.back() == ']') && encloses(form)) {
    list.open = form.substr(0, 1);
    list.close = form.substr(form.size() - 1);
    inner = form.substr(1, form.size() - 2);
  }
  list.items = split_at_commas(inner);
  const bool counts = list.items.size() >= 2 || list.set();
  return counts && list.items.size() <= kMaxItems ? std::optional(std::move(list)) : std::nullopt;
}

class AnswerComparison {
 public:
  explicit AnswerComparison(const MathRules& rules) : rules_(rules) {}

  StepBudget& budget() { return budget_; }

  MathMatch compare(std::string_view answer, std::string_view label, int depth) {
    if (answer == label) {
      return {!label.empty(), "spelling"};
    }
    if (answer.empty() || label.empty() || budget_.spent()) {
      return {false, budget_.spent() ? "refused" : "spelling"};
    }
    const auto answer_list = read_list(answer);
    const auto label_list = read_list(label);
    if (answer_list || label_list) {
      const bool both = answer_list && label_list && depth < kMaxListDepth;
      return {both && same_lists(*answer_list, *label_list, depth), "list"};
    }
    const auto answer_number = parse_number(answer);
    const auto label_number = parse_number(label);
    if (answer_number && label_number) {
      return {same_numbers(*answer_number, *label_number), "number"};
    }
    const auto answer_tree = parse_expression(answer, budget_);
    const auto label_tree = parse_expression(label, budget_);
    if (!answer_tree || !label_tree) {
      return {false, "refused"};
    }
    return {same_value(*answer_tree, *label_tree, budget_), "value"};
  }

 private:
  bool same_numbers(const ExactNumber& answer, const ExactNumber& label) const {
    const bool must_be_reduced = rules_.strict_fraction && label.fraction && label.reduced;
    if (must_be_reduced && answer.fraction && !answer.reduced) {
      return false;
    }
    return same_number(answer, label);
  }

  bool same_lists(const WrittenList& answer, const WrittenList& label, int depth) {
    if (answer.open != label.open || answer.close != label.close ||
        answer.items.size() != label.items.size()) {
      return false;
    }
    std::vector<std::string_view> open(answer.items);
    for (const std::string_view wanted : label.items) {
      // In a set any item that is left may be the one, elsewhere the first.
      const auto end = label.set() ? open.end() : open.begin() + 1;
      const auto found = std::find_if(open.begin(), end, [&](std::string_view item) {
        return budget_.spend(static_cast<int64_t>(item.size() + wanted.size())) &&
               compare(item, wanted, depth + 1).equal;
      });
      if (found == end) {
        return false;
      }
      open.erase(found);
    }
    return true;
  }

  MathRules rules_;
  StepBudget budget_;
};

}  // namespace

MathMatch compare_answers(std::string_view answer, std::string_view label, const MathRules& rules) {
  if (answer.size() > kMaxLength || label.size() > kMaxLength) {
    return {answer == label && !label.empty(), "spelling"};
  }
  AnswerComparison comparison(rules);
  const std::string answer_form = math_form(answer, comparison.budget());
  const std::string label_form = math_form(label, comparison.budget());
  MathMatch match = comparison.compare(answer_form, label_form, 0);
  match.steps = comparison.budget().used();
  return match;
}

}  // namespace baleen::rewards
