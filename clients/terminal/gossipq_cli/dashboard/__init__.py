"""`gossipq top`: snapshots -> history -> pure views -> a painter that sends changed lines only."""
