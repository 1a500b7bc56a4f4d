"""`gossipq top`: snapshot -> history -> pure views -> a painter that sends only the lines that changed."""
