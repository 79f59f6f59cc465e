#define THALWEG_NEON
#include "kernels.inc"

const thalweg::Kernels thalweg::neondot_kernels = THALWEG_TABLE("neondot");
