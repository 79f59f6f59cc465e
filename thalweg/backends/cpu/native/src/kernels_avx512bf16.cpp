#include "kernels.inc"

const thalweg::Kernels thalweg::avx512bf16_kernels = THALWEG_TABLE("avx512bf16");
