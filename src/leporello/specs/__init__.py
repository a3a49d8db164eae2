"""Text specifications of cells and gradient methods, as commands and configurations write them."""
