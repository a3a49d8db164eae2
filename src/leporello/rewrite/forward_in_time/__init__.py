"""Rewrites for gradients that are computed forward in time: the Loop carries, beside the state, its derivative with
respect to the parameters.

linearize           the Loop with such a state, from a function of one step
derivatives         the derivatives of one step, by torch.func
influence           exact: the whole influence matrix (RTRL)
rank_one            unbiased: a random matrix of rank one (UORO)
"""
