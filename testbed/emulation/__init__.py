"""Pure models of slow processors and slow links."""
