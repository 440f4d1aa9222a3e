"""The ablation suite around `layer_swap`: evaluation, studies, reports, training and testbeds.

One of three packages: `layerswap_method` is the method, and imports nothing of the others;
`ablations` evaluates, compares and trains, and has the command line (`ablations.cli`); `layerswap`
is the API, the same commands as functions.
"""
