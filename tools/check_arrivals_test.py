#!/usr/bin/env python3
import unittest

from check_arrivals import early_arrivals


def line(address, text, sets=7, waits=0):
    control = (sets << 5 | 7 << 8 | waits << 11) << 41
    return [f"        /*{address:04x}*/  {text} ;  /* 0x0000000000000000 */",
            f"                              /* 0x{control:016x} */"]


def code(*instructions):
    lines = ["\t\tFunction : kernel"]
    for number, instruction in enumerate(instructions):
        lines += line(16 * number, *instruction)
    return [address for _, address, _, _ in early_arrivals(lines)]


LOAD = "LDS.128 R4, [R0]"
ARRIVE = "@!P0 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R9+URZ], RZ"


class CheckArrivals(unittest.TestCase):
    def test_an_arrival_right_behind_a_load_is_found(self):
        self.assertEqual(code((LOAD, 1), (ARRIVE,)), ["0010"])

    def test_an_arrival_behind_the_loads_use_is_fine(self):
        self.assertEqual(code((LOAD, 1), ("LOP3.LUT R3, R4, R5, R6, 0x80, !PT", 7, 1 << 1), (ARRIVE,)), [])

    def test_a_wait_for_another_scoreboard_does_not_help(self):
        self.assertEqual(code((LOAD, 1), ("IADD3 R3, R2, R2, RZ", 7, 1 << 2), (ARRIVE,)), ["0020"])

    def test_the_arrival_itself_may_wait(self):
        self.assertEqual(code((LOAD, 0), (ARRIVE, 7, 1)), [])

    def test_a_load_without_scoreboard_ends_with_the_next_one(self):
        self.assertEqual(code((LOAD,), (LOAD, 3), ("FADD R1, R4, R5", 7, 1 << 3), (ARRIVE,)), [])
        self.assertEqual(code((LOAD,), (ARRIVE,)), ["0010"])

    def test_arrivals_that_expect_bytes_are_of_producers(self):
        self.assertEqual(code((LOAD, 1), ("SYNCS.ARRIVE.TRANS64 RZ, [UR47], R10",)), [])


if __name__ == "__main__":
    unittest.main()
