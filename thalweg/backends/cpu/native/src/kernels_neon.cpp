#define THALWEG_NEON
#include "kernels.inc"

const thalweg::Kernels thalweg::neon_kernels = THALWEG_TABLE("neon");
