module gossipq

go 1.19
