#!/usr/bin/env python3
"""Tests of wgmma_operands.py on made-up machine code."""
import unittest

from wgmma_operands import overwritten


def listing(*texts):
    return [f"        /*{16 * at:04x}*/                   {text} ;" for at, text in enumerate(texts)]


PRODUCT = "QGMMA.64x32x32.F32.E4M3.E4M3 R24, R40, gdesc[UR12], RZ, !UPT, gsb0"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"


class OverwrittenOperands(unittest.TestCase):
    def found(self, *between):
        groups, faults = overwritten(listing("LDS.128 R40, [R1]", PRODUCT, *between, WAIT, "LDS.128 R40, [R1]"))
        self.assertEqual(groups, 1)
        return faults

    def test_loads_and_sums_into_the_operand_are_found(self):
        self.assertEqual(self.found("LDS.128 R40, [R145+UR8]"), ["20: LDS.128 R40, [R145+UR8]"])
        self.assertEqual(len(self.found("IADD3 R43, R1, R2, RZ")), 1)
        self.assertEqual(len(self.found("LDS.64 R42, [R1]", "@!P0 IMAD.MOV.U32 R41, RZ, RZ, R5")), 2)
        self.assertEqual(len(self.found("LDS.128 R37, [R1]")), 1, "its last register is the operand's first")

    def test_other_registers_and_mere_readers_are_not(self):
        self.assertEqual(self.found("LDS.128 R44, [R1]", "IADD3 R39, R40, R41, RZ", "STS [R40], R41", "@P0 BRA 0x40"), [])
        self.assertEqual(self.found(), [])

    def test_every_product_of_a_group_counts(self):
        second = PRODUCT.replace("R40", "R60")
        groups, faults = overwritten(listing(PRODUCT, second, "MOV R61, R2", "MOV R40, R2", WAIT))
        self.assertEqual((groups, len(faults)), (1, 2))


if __name__ == "__main__":
    unittest.main()
