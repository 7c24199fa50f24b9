"""The pick on the devices at hand: transformer blocks and a VAE slice in torch, without weights.

Random weights at the true per-rank shapes, real messages between the ranks, every operator timed
and set beside its prediction.  The only part of `verify` that imports torch.
"""
