#define THALWEG_NEON
#include "kernels.inc"

const thalweg::Kernels thalweg::neonbf16_kernels = THALWEG_TABLE("neonbf16");
