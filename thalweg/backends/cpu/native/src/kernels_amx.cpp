#include "kernels.inc"

const thalweg::Kernels thalweg::amx_kernels = THALWEG_TABLE("amx");
