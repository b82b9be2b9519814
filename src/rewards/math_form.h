#pragma once
// One spelling for the many ways an answer is written in LaTeX: no blanks (but the one of "\pi r"),
// dollars, \left, \right,
// spacing commands, degree and percent signs; \frac{a}{b} and \sqrt{a} with braces; * for \cdot and
// \times; units in \text{...} at the end dropped; "x=5" read as 5. Pure, any thread.
//
//   StepBudget budget;
//   math_form("x = \\dfrac12 \\text{ cm}", budget);   // \frac{1}{2}

#include <string>
#include <string_view>

#include "rewards/step_budget.h"

namespace baleen::rewards {

std::string math_form(std::string_view text, StepBudget& budget);

}  // namespace baleen::rewards
