"""The parts of `python -m spectral_flax.steer`: a copy of a model that draws tokens to a direction.

model       what is steered: weights of somebody else's, or a run of ours in GPT-2's layout
direction   token:WORD, vector:FILE or random:SEED -> a vector
change      the new output projections, layer by layer
folder      the copy, in which only they differ
effect      alignment, and a language model's likeliest tokens, before and after
"""
