"""RNN, LSTM and GRU over packed sequences."""
