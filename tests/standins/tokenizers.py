"""Word-level tokenizers for stand-in models."""

SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]


def words(count):
    """Return `count` tokens in the order of their ids, the special ones first."""
    plain = [f"w{index}" for index in range(count - len(SPECIAL))]
    return [*SPECIAL, *plain]


def save_word_tokenizer(folder, words, **settings):
    """Save a tokenizer that splits at white space; the ids are the positions in `words`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {f"{token[1:-1]}_token": token for token in SPECIAL}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **settings).save_pretrained(
        folder
    )
