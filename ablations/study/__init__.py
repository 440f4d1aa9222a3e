"""Studies: what is asked, of which experts, in which cells. Knows files and plans; runs nothing."""
