"""`thalweg quantize`: a dense checkpoint written again in a quantised format, by rounding or by calibration.

`formats` lists the formats, `grids` rounds values to them, `packing` lays out codes in files. `layers` runs a model layer by
layer, and gathers statistics for calibration. `awq` and `gptq` are the calibration methods. `run` combines all steps.
"""
