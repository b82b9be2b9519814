#include "device/stream.h"

#include <utility>

#include "device/cuda_check.h"

namespace baleen::device {

Stream::Stream() {
  BALEEN_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Stream::~Stream() {
  cudaStreamDestroy(stream_);
}

void Stream::synchronize() const {
  BALEEN_CUDA_CHECK(cudaStreamSynchronize(stream_));
}

void Stream::wait_for(const Event& event) const {
  BALEEN_CUDA_CHECK(cudaStreamWaitEvent(stream_, event.get(), 0));
}

Event::Event() {
  BALEEN_CUDA_CHECK(cudaEventCreate(&event_));
}

Event::~Event() {
  cudaEventDestroy(event_);
}

void Event::record(const Stream& stream) {
  BALEEN_CUDA_CHECK(cudaEventRecord(event_, stream.get()));
}

void Event::record_in_graph(cudaStream_t capturing) {
  BALEEN_CUDA_CHECK(cudaEventRecordWithFlags(event_, capturing, cudaEventRecordExternal));
}

void Event::record_on_default_stream() {
  BALEEN_CUDA_CHECK(cudaEventRecord(event_, cudaStreamLegacy));
}

double Event::microseconds_since(const Event& begin) const {
  BALEEN_CUDA_CHECK(cudaEventSynchronize(event_));
  float milliseconds = 0;
  BALEEN_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
  return static_cast<double>(milliseconds) * 1000;
}

Graph Graph::capture(const Stream& stream, const std::function<void(cudaStream_t)>& record) {
  BALEEN_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  try {
    record(stream.get());
  } catch (...) {
    cudaGraph_t broken = nullptr;
    cudaStreamEndCapture(stream.get(), &broken);
    if (broken != nullptr) {
      cudaGraphDestroy(broken);
    }
    cudaGetLastError();
    throw;
  }
  cudaGraph_t graph = nullptr;
  BALEEN_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  BALEEN_CUDA_CHECK(code);
  BALEEN_CUDA_CHECK(cudaGraphUpload(executable, stream.get()));
  return Graph(executable);
}

Graph::Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(executable_, other.executable_);
  return *this;
}

Graph::~Graph() {
  if (executable_ != nullptr) {
    cudaGraphExecDestroy(executable_);
  }
}

void Graph::launch(const Stream& stream) const {
  BALEEN_CUDA_CHECK(cudaGraphLaunch(executable_, stream.get()));
}

}  // namespace baleen::device
