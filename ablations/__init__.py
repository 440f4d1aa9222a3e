"""The ablation suite around `layer_swap`: pocket testbed, evaluation, the click command."""
