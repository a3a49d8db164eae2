"""From a cell to a Loop: the step run on fake tensors, and its graph in the form that all else reads."""
