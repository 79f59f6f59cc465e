#include "kernels.inc"

const thalweg::Kernels thalweg::avx512_kernels = THALWEG_TABLE("avx512");
