#include "kernels.inc"

const thalweg::Kernels thalweg::avx512vnni_kernels = THALWEG_TABLE("avx512vnni");
