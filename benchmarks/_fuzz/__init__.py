"""Parts of `fairbed bench fuzz`: the decoders, the mutations, and the guided engine."""
