"""The engine `cpu`: insides of a Loop as generated C, built by the machine's compiler and cached."""
