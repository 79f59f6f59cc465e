#include "kernels.inc"

const thalweg::Kernels thalweg::portable_kernels = THALWEG_TABLE("portable");
