"""SmolLM2-135M on a laptop: data for experts of it, and tasks; `build.build_smol` makes them."""
