#include "kernels.inc"

const thalweg::Kernels thalweg::avx2_kernels = THALWEG_TABLE("avx2");
