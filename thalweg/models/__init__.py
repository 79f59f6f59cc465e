"""Models as functions: layers written once on bound ops, parameters passed in, one step around them. Knows no device."""
