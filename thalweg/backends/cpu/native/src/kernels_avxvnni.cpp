#include "kernels.inc"

const thalweg::Kernels thalweg::avxvnni_kernels = THALWEG_TABLE("avxvnni");
