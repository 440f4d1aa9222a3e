"""Models of the Hugging Face hub, of which only the files and bytes that are read are fetched."""
