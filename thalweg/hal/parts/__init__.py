"""Parts of a step, one file each: the arrays that a feature adds to the steps that need them. Each declares its dimensions."""
