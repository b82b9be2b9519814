#pragma once
// Owners of a CUDA stream, an event and a captured graph. Each belongs to the thread that made it
// unless its owner says otherwise; a stream outlives the buffers used on it.
//
//   device::Stream stream;
//   device::Graph graph = device::Graph::capture(stream, [&](cudaStream_t s) { launch(params, s);
//   }); graph.launch(stream); stream.synchronize();

#include <functional>

#include <cuda_runtime_api.h>

namespace baleen::device {

class Event;

class Stream {
 public:
  /// A stream that does not wait for the legacy default stream.
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void synchronize() const;
  /// What is submitted from now on waits for what `event` stands for; the host does not.
  void wait_for(const Event& event) const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream);
  /// Inside a capture: every replay of the graph records the event where it stands.
  void record_in_graph(cudaStream_t capturing);
  /// On the legacy default stream, where libraries work that were given no stream.
  void record_on_default_stream();
  /// Microseconds from `begin` to this event; waits for this event.
  double microseconds_since(const Event& begin) const;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class Graph {
 public:
  /// Records what `record` launches on the given stream; nothing runs yet.
  static Graph capture(const Stream& stream, const std::function<void(cudaStream_t)>& record);
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  void launch(const Stream& stream) const;

 private:
  explicit Graph(cudaGraphExec_t executable) : executable_(executable) {}
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace baleen::device
