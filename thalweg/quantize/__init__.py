"""`thalweg quantize`: a dense checkpoint written again in a quantised format, by rounding or by calibration.

`formats` says what can be written, `grids` how values are rounded to it, `packing` how codes lie in files. `layers` runs a
model layer by layer, and gathers what calibration needs. `awq` and `gptq` are the two ways to calibrate. `run` is the whole.
"""
