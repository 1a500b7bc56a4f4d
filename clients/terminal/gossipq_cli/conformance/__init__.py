"""Whether a client in another language keeps its word: scripted work against real nodes that are killed under
it. The language is behind a *driver*, a program that calls the client's public verbs (`driver`)."""
