"""The types of tensors in GGUF files: values and bytes of a block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    values: int
    """Values of a block. 1: not a block type."""
    bytes: int
    """Bytes of a block."""
    dense: str = ""
    """The dtype name of a dense type. "": a block type, which must be decoded."""

    def row(self, values: int) -> int:
        """Bytes of this number of values. ValueError if it is not a multiple of the block."""
        if values % self.values:
            raise ValueError(f"{values} values are no whole number of {self.name} blocks of {self.values}")
        return values // self.values * self.bytes


STORED = {
    "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "float64": np.float64, "int8": np.int8,
    "int16": np.int16, "int32": np.int32, "int64": np.int64,
}  # fmt: skip
"""dtype name -> numpy type, an unsigned integer of the same width where numpy has no such type."""

TYPES = {
    0: Type("F32", 1, 4, "float32"),
    1: Type("F16", 1, 2, "float16"),
    2: Type("Q4_0", 32, 18),
    3: Type("Q4_1", 32, 20),
    6: Type("Q5_0", 32, 22),
    7: Type("Q5_1", 32, 24),
    8: Type("Q8_0", 32, 34),
    10: Type("Q2_K", 256, 84),
    11: Type("Q3_K", 256, 110),
    12: Type("Q4_K", 256, 144),
    13: Type("Q5_K", 256, 176),
    14: Type("Q6_K", 256, 210),
    16: Type("IQ2_XXS", 256, 66),
    17: Type("IQ2_XS", 256, 74),
    18: Type("IQ3_XXS", 256, 98),
    19: Type("IQ1_S", 256, 50),
    20: Type("IQ4_NL", 32, 18),
    21: Type("IQ3_S", 256, 110),
    22: Type("IQ2_S", 256, 82),
    23: Type("IQ4_XS", 256, 136),
    24: Type("I8", 1, 1, "int8"),
    25: Type("I16", 1, 2, "int16"),
    26: Type("I32", 1, 4, "int32"),
    27: Type("I64", 1, 8, "int64"),
    28: Type("F64", 1, 8, "float64"),
    29: Type("IQ1_M", 256, 56),
    30: Type("BF16", 1, 2, "bfloat16"),
    34: Type("TQ1_0", 256, 54),
    35: Type("TQ2_0", 256, 66),
    39: Type("MXFP4", 32, 17),
    40: Type("NVFP4", 64, 36),
    41: Type("Q1_0", 128, 18),
    42: Type("Q2_0", 64, 18),
}
"""Number of the type in files -> type."""

GONE = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}  # fmt: skip
"""Types that llama.cpp removed, or never writes to files."""
