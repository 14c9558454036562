"""The part of every recipe that says how a run lies on its devices; it changes no numbers."""


def devices() -> dict:
    """Returns the defaults: one copy of one model on each device, keeping all activations."""
    return dict(
        parallel="pmap",  # "fsdp" splits parameters and optimiser state over devices
        # Of fsdp: how many copies of the state there are, times in how many parts each; -1: the
        # rest of the devices.
        mesh=dict(data=1, fsdp=-1),
        remat="none",  # "dots", "full": what the backward pass computes again, to save memory
        num_seeds=1,  # trains seed, seed + 1, ... in one program, each in a directory of its own
    )
