"""How cells and gradient methods are written as text: by commands and in configurations."""
